"""
Quickstart
==========

Train one model for each of 24 clients and see who helped whom. The clients have the digits
that come with scikit-learn, turned by 0, 90, 180 or 270 degrees: a global model has to read
all four, and each client alone has about 50 images.
"""

import matplotlib.pyplot as plt

import fedkin
from fedkin.methods import Perm
from fedkin.models import build

data = fedkin.load(fedkin.DataConfig(name="rotated-digits"), seed=0)
model = build("mlp:64", data.input_shape, data.num_classes)
run = fedkin.train(fedkin.Problem(model, data), Perm(lr=0.1), rounds=100)

last = run.clients[run.clients["round"] == 100]
print(f"personal models: {last['personal_accuracy'].mean():.1%} on held-out images")
print(f"trained alone:   {last['local_accuracy'].mean():.1%}")

# %%
# Row i of ``run.mixing`` says how much client i learns from every client. The four groups
# show; nobody told the method about them.

plt.imshow(run.mixing, cmap="Greens")
plt.xlabel("learns from client")
plt.ylabel("client")
plt.colorbar(label="weight")
plt.show()
