"""One pure function per limit: the signals of an engine → a `Binding`, or None where it does not hold."""
