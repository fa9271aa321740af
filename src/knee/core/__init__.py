"""Clock, errors, units and records: the types that everything else exchanges."""
