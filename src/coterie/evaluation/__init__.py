"""How a run is judged: who is served which model, and how well."""
