"""The parts that both commands share: parsing of the command line, options, errors, exit codes, and the run itself."""
