"""Calls each getter of NVML that needs a card, and a small number at most, and each field.

Prints lines "NAME CODE".

CODE is NVML's return code, 0 where it answers; "python" where the call cannot be made so.
"""

import inspect

import pynvml

CARD = ("handle", "device")
# Second arguments that are small numbers; others are addresses.
NUMBERS = ("type", "link", "fan", "profile", "profileId", "sensor", "counter", "threshold",
           "sensorindex", "level", "capability", "index", "perfPolicyType", "encoderQueryType",
           "infoRomObject", "apiType")


def code_of(getter, *arguments):
    try:
        getter(*arguments)
    except pynvml.NVMLError as error:
        return error.value
    except Exception:
        return "python"
    return 0


def needed(name):
    """The names of what a function must be given; None where it is none."""
    function = getattr(pynvml, name)
    if not inspect.isfunction(function):
        return None
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.default is one.empty]


def getters(card):
    for name in sorted(dir(pynvml)):
        function, wants = getattr(pynvml, name), needed(name)
        if name.startswith("nvmlSystemGet") and wants == []:
            yield name, code_of(function)
        elif name.startswith("nvmlDeviceGet") and wants and wants[0] in CARD:
            if len(wants) == 1:
                yield name, code_of(function, card)
            elif len(wants) == 2 and wants[1] in NUMBERS:
                for number in range(4):
                    yield f"{name}({number})", code_of(function, card, number)


def fields(card):
    numbers = {value: name for name, value in sorted(vars(pynvml).items())
               if name.startswith("NVML_FI_DEV_") and isinstance(value, int)}
    for number, name in sorted(numbers.items()):
        try:
            [answer] = pynvml.nvmlDeviceGetFieldValues(card, [number])
            yield name, answer.nvmlReturn
        except pynvml.NVMLError as error:
            yield name, error.value


if __name__ == "__main__":
    pynvml.nvmlInit()
    first = pynvml.nvmlDeviceGetHandleByIndex(0)
    for called, code in (*getters(first), *fields(first)):
        print(called, code)
