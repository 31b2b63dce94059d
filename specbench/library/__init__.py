"""What `import specbench` offers: the commands as functions, their results as objects."""
