"""How each family of operators moves, joins or freezes channels."""
