"""Tables, plots and pages that show results."""
