"""How clients' data differ: in labels, concept, features and amount. docs/diagnose.md says how."""
