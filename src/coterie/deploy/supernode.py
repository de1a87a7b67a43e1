"""The process of a node that fetches its messages: Flower's SuperNode, with shorter waits.

python -m coterie.deploy.supernode ...      # the options of `flower-supernode`
"""

from coterie.deploy.flwr_supernode import run_supernode

if __name__ == "__main__":
    run_supernode()
