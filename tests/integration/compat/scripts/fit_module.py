"""fit in a method of a class in a module beside the script; `__main__` guard, argparse, logging, a config file"""

import argparse
import json
import logging

import keras
import numpy as np
from beside_fit_module import Experiment


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    logging.basicConfig(filename="run.log", level=logging.INFO)
    keras.utils.set_random_seed(1)
    with open("config.json", "w") as file:
        json.dump({"units": 3}, file)
    x = np.random.normal(size=(40, 4)).astype("float32")
    experiment = Experiment(**json.load(open("config.json")))
    history = experiment.run(x, x.sum(1, keepdims=True), arguments.epochs)
    logging.info("done %s", history.epoch)
    print("loss", history.history["loss"], experiment.model.predict(x[:2], verbose=0).ravel())


if __name__ == "__main__":
    main()
