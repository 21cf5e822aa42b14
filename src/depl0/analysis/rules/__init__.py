"""How each family of operators moves or joins channels, or makes them unprunable."""
