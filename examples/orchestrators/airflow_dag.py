"""Airflow: a task that calls ``.sync()``. Airflow schedules and retries; each date is loaded once.

Put this file and stock.py into the DAGs folder.
"""

from datetime import datetime, timedelta

from airflow.sdk import dag, task
from stock import stock_levels


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False, tags=["ematix-flow"])
def stock():
    @task(retries=2, retry_delay=timedelta(minutes=1))
    def load(logical_date=None):
        # a retry, or a task that is cleared, finds its date in the ledger and loads nothing twice
        return stock_levels.sync(slot=logical_date).to_json()

    load()


stock()
