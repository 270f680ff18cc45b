"""Asks the questions of docs/fleet.sql, and prints the answers as JSON by the names of the questions.

usage: fleet.py duckdb|spark FOLDER SQL
"""

import json
import os
import re
import sys
from pathlib import Path

TABLES = ("devices", "failures")


def questions(sql):
    """The text of each question by its name, which stands in a comment before it."""
    found = {}
    for text in sql.split(";"):
        name = re.search(r"^-- (\w+):", text, re.MULTILINE)
        if name:
            found[name[1]] = text
    return found


def duckdb(folder):
    import duckdb

    connection = duckdb.connect()
    for table in TABLES:
        files = f"{folder}/{table}/**/*.parquet"
        connection.sql(f"create view {table} as from read_parquet('{files}', hive_partitioning = true, union_by_name = true)")

    def ask(text):
        answer = connection.sql(text)
        return [dict(zip(answer.columns, row)) for row in answer.fetchall()]

    return ask


def spark(folder):
    from pyspark.sql import SparkSession

    # To optimise what runs once takes longer than to run it.
    os.environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = session.config("spark.sql.shuffle.partitions", "1").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for table in TABLES:
        session.read.parquet(f"{folder}/{table}").createOrReplaceTempView(table)
    return lambda text: [row.asDict() for row in session.sql(text).collect()]


engine, folder, sql = sys.argv[1:]
ask = {"duckdb": duckdb, "spark": spark}[engine](folder)
answers = {name: ask(text) for name, text in questions(Path(sql).read_text()).items()}
plain = {"Decimal": float, "datetime": lambda moment: moment.timestamp()}
print(json.dumps(answers, default=lambda value: plain[type(value).__name__](value)))
