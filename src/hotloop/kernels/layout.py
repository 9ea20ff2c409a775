"""A fingerprint of each format's packed layout, so that a file packed by other code is not misread.

It is computed by packing two small weights and hashing the result: whoever changes how a format is
packed changes its fingerprint, and need not think of a version number.
"""

from functools import cache
from hashlib import sha256

import numpy as np

from hotloop.ir.types import FORMATS, TensorType
from hotloop.kernels.pack import pack, packed_bytes

#: Rows and columns: groups that are not full, and blocks of 256; whole groups in pairs.
_SHAPES = ((19, 512), (64, 1024))
#: Bytes from 0 to 60 make float16 scales that are small and finite, whatever the format.
_BYTES = 61


@cache
def layout_of(format_name: str) -> str:
    """The fingerprint of a format's packed layout."""
    digest = sha256()
    for shape in _SHAPES:
        type = TensorType(FORMATS[format_name], shape)
        data = (np.arange(type.nbytes, dtype=np.int64) % _BYTES).astype(np.uint8)
        out = np.zeros(packed_bytes(type), np.uint8)
        pack(data, type, out)
        digest.update(out.data)
    return digest.hexdigest()[:16]
