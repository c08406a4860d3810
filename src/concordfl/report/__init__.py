"""Tables, figures and reports, from records only."""
