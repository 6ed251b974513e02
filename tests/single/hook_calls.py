"""Recording of calls of a patched function, for the contracts with TensorFlow's and Keras's private names."""

from fdt.patches import Patch, patched


def calls(owner, name, act):
    """Return (arguments, keyword arguments) of each call of `owner.name` while `act()` runs."""
    found = []

    def noting(original, *args, **kwargs):
        found.append((args, kwargs))
        return original(*args, **kwargs)

    with patched([Patch(owner, name, noting)]):
        act()
    return found


def assert_called(owner, name, act, accepts):
    """Assert that `act()` calls `owner.name`, and once with the arguments that `accepts` expects.

    Args:
        owner: A module, a class or an object.
        name: The attribute.
        act: What calls it.
        accepts: Takes the arguments that the project's replacement takes; returns whether they are those of `act`.
    """
    found = calls(owner, name, act)
    accepted = [accepts(*args, **kwargs) for args, kwargs in found]  # raises TypeError
    assert any(accepted), f"{name} is not called as expected: {found}"
