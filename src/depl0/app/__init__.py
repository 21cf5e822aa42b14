"""Everything that exists because depl0 also runs trainings: data, recipes, runs, reports, the command."""
