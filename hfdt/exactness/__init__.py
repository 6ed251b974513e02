"""What makes a rank's losses, gradients, states and metrics add up to the global batch's, and the probe that checks
it."""
