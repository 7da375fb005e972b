"""Made-up data under the names that example scripts ask for."""
