"""Intracranial EEG of the iMINDBench data sets: recordings, labels, splits, and a simulator."""
