"""Functions compiled part by part: recorded, cut where layers begin, equal parts compiled once and kept on disk."""
