"""What the script gave to `fit`, taken out whole: model, data, arguments."""
