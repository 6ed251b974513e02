"""What the two commands share: splitting the command line, options, errors and exit codes, the run itself."""
