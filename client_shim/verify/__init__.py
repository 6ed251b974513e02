"""`verify`: comparison of a script's training in one process and divided over workers, step by step.

It shows whether the numbers are equal to float rounding. The script is run three times: alone; alone with its weights
moved by one unit in the last place, which measures how this script magnifies rounding; and divided. Each run records
its steps (recorder.py), and compare.py judges them.
"""
