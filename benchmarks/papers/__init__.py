"""The experiments of the five source documents, by one command: data, a picture and a row of the results page each."""
