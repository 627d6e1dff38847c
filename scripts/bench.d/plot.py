def plot(a, b): pass
