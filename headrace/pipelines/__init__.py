"""Pipelines: functions from DataFrame to DataFrame between streams, tables and stores, run by Spark.

`session.py` starts Spark. Nothing here runs at import.
"""
