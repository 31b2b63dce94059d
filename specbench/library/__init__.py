"""The API of `import specbench`: the commands as functions, their results as objects."""
