"""The process that keeps messages for nodes: Flower's SuperLink, with a steady clock.

python -m coterie.deploy.superlink ...      # the options of `flower-superlink`
"""

from coterie.deploy.flwr_internals import run_superlink_process

if __name__ == "__main__":
    run_superlink_process()
