"""Python imports this before any script whose PYTHONPATH names this folder.

That is how unmodified scripts receive made-up data, whatever starts them.
"""

from tests.keras_examples.synthetic import replacements

replacements.install()
