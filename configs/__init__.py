"""Layouts and the embedded voice, shipped as package data."""
