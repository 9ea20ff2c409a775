"""What every other folder may use: settings, errors, remarks."""
