"""What installs a project and the packages that its tests need, according to its files; nothing is run."""
