"""The paper's other generators, its authors' penalties, and its published recipes."""
