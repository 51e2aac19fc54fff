"""A claim's way: allocated by the scheduler, granted by the plugin, held by egpu."""

import json
import os

from api import until
from case import ClaimCase
from cluster import CDI_FOLDER
from objects import GIB, request

QUARTER = {"memory": "8Gi", "compute": 25}


class Claims(ClaimCase):
    def test_a_quarter(self):
        self.running("quarter", request(**QUARTER))
        claim = self.claim_of("quarter")
        table = self.inside("quarter", "rm-client", "smi")
        self.assertEqual((table.count("Tesla V100"), table.count("/ 8192MiB")), (1, 1), table)
        self.assertIn(f"total {8 * GIB}", self.inside("quarter", "rm-client", "memory"))

        grant = self.grants("quarter")["gpu"]
        self.assertEqual(grant["id"], f"claim-{claim['metadata']['uid']}-gpu")
        self.assertEqual(grant["cards"][0]["memory_limit_bytes"], 8 * GIB)
        self.assertEqual(grant["cards"][0]["compute_percent"], 25)
        self.assertEqual([user["name"] for user in grant["claim"]["containers"]], ["main"], json.dumps(grant))
        self.assertIn("quarter", self.cluster.egpu("ps"))
        self.assertEqual(os.listdir(CDI_FOLDER), [f"egpu.io-claim-{claim['metadata']['uid']}.json"])
        said = "gpu: gpu-0 (Tesla V100-PCIE-32GB): 8 GiB compute=25%"
        until("the event", lambda: said in self.cluster.events("quarter"))

        self.cluster.delete_pod("quarter")
        until("the node to be empty", lambda: not self.cluster.leftovers(), 10)
        self.assertEqual(self.cluster.grants(), [])
        self.assertEqual(os.listdir(CDI_FOLDER), [])
