"""Studies: several runs compared, their results kept and measured."""
