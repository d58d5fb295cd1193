"""Values that travel between the rooms, and the letters that name their shapes.

B documents of a batch, T tokens of a document, L labels of the taxonomy, N nodes of a level of the coding tree,
D width of a vector.
"""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
