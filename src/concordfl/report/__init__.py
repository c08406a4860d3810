"""Tables and curves, from the summaries of finished runs and from kept results."""
