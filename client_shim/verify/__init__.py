"""`verify`: a script alone and divided, step by step: are its numbers equal to float rounding?

The script is run three times: alone; alone with its weights moved by one unit in the last place, which measures how
this script magnifies rounding; and divided. Each run records its steps (recorder.py), compare.py judges them.
"""
