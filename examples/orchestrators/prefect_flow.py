"""Prefect: a task that calls ``.sync()``. Prefect schedules and retries; each scheduled time is loaded once.

Try it:  python prefect_flow.py
"""

from prefect import flow, runtime, task
from stock import stock_levels


@task(retries=2, retry_delay_seconds=[10, 60])
def load(slot):
    # a retry finds its slot in the ledger and loads nothing twice
    return stock_levels.sync(slot=slot).to_json()


@flow
def stock():
    return load(runtime.flow_run.scheduled_start_time)


if __name__ == "__main__":
    stock.serve(name="hourly", cron="0 * * * *")
