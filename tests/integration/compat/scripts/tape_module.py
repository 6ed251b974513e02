"""a Trainer class in a module beside the script, its step a tf.function method"""

import sys

import beside_tape_module as library

if __name__ == "__main__":
    trainer = library.Trainer(width=4)
    for number in range(2):
        print("epoch", number, trainer.epoch(library.data()))
    print("evaluated", trainer.evaluate(library.data()), len(sys.argv))
