"""The messages of Core ML's model format that an ML program has, as tables for `wire`.

Field numbers are those of Model.proto, FeatureTypes.proto and MIL.proto.
"""

from __future__ import annotations

from softcoreml.format.wire import Field, Message

MODEL = Message("Model")
VALUE_TYPE = Message("ValueType")
_VALUE = Message("Value")
_BLOCK = Message("Block")


_Fields = tuple[int, str | Message] | tuple[int, str | Message, bool]


def _message(title: str, /, **fields: _Fields) -> Message:
    """A message whose fields are (number, kind) or, repeated, (number, kind, True)."""
    message = Message(title)
    _define(message, **fields)
    return message


def _define(message: Message, /, **fields: _Fields) -> None:
    message.define({one[0]: Field(name, *one[1:]) for name, one in fields.items()})


def _map(kind: str | Message) -> Message:
    return _message("MapEntry", key=(1, "string"), value=(2, kind))


_EMPTY = Message("Empty")
_SIZE_RANGE = _message("SizeRange", lowerBound=(1, "uint64"), upperBound=(2, "int64"))
_ARRAY = _message(
    "ArrayFeatureType",
    shape=(1, "int64", True),
    dataType=(2, "int32"),
    enumeratedShapes=(
        21,
        _message("EnumeratedShapes", shapes=(1, _message("Shape", shape=(1, "int64", True)), True)),
    ),
    shapeRange=(31, _message("ShapeRange", sizeRanges=(1, _SIZE_RANGE, True))),
    intDefaultValue=(41, "int32"),
    floatDefaultValue=(51, "float"),
    doubleDefaultValue=(61, "double"),
)
_IMAGE = _message(
    "ImageFeatureType",
    width=(1, "int64"),
    height=(2, "int64"),
    colorSpace=(3, "int32"),
    enumeratedSizes=(
        21,
        _message(
            "EnumeratedImageSizes",
            sizes=(
                1,
                _message("ImageSize", width=(1, "uint64"), height=(2, "uint64")),
                True,
            ),
        ),
    ),
    imageSizeRange=(
        31,
        _message("ImageSizeRange", widthRange=(1, _SIZE_RANGE), heightRange=(2, _SIZE_RANGE)),
    ),
)
_FEATURE_TYPE = _message(
    "FeatureType",
    int64Type=(1, _EMPTY),
    doubleType=(2, _EMPTY),
    stringType=(3, _EMPTY),
    imageType=(4, _IMAGE),
    multiArrayType=(5, _ARRAY),
    dictionaryType=(
        6,
        _message("DictionaryFeatureType", int64KeyType=(1, _EMPTY), stringKeyType=(2, _EMPTY)),
    ),
    sequenceType=(7, _EMPTY),
    stateType=(8, _message("StateFeatureType", arrayType=(1, _ARRAY))),
    isOptional=(1000, "bool"),
)
_FEATURE = _message(
    "FeatureDescription",
    name=(1, "string"),
    shortDescription=(2, "string"),
    type=(3, _FEATURE_TYPE),
)
_FUNCTION_DESCRIPTION = _message(
    "FunctionDescription",
    name=(1, "string"),
    input=(2, _FEATURE, True),
    output=(3, _FEATURE, True),
    predictedFeatureName=(4, "string"),
    predictedProbabilitiesName=(5, "string"),
    state=(6, _FEATURE, True),
)
DESCRIPTION = _message(
    "ModelDescription",
    input=(1, _FEATURE, True),
    output=(10, _FEATURE, True),
    predictedFeatureName=(11, "string"),
    predictedProbabilitiesName=(12, "string"),
    state=(13, _FEATURE, True),
    functions=(20, _FUNCTION_DESCRIPTION, True),
    defaultFunctionName=(21, "string"),
    metadata=(
        100,
        _message(
            "Metadata",
            shortDescription=(1, "string"),
            versionString=(2, "string"),
            author=(3, "string"),
            license=(4, "string"),
            userDefined=(100, _map("string"), True),
        ),
    ),
)

_ATTRIBUTES = _map(_VALUE)
_DIMENSION = _message(
    "Dimension",
    constant=(1, _message("ConstantDimension", size=(1, "uint64"))),
    unknown=(2, _message("UnknownDimension", variadic=(1, "bool"))),
)
_define(
    VALUE_TYPE,
    tensorType=(
        1,
        _message(
            "TensorType",
            dataType=(1, "int32"),
            rank=(2, "int64"),
            dimensions=(3, _DIMENSION, True),
        ),
    ),
    listType=(2, _message("ListType", type=(1, VALUE_TYPE), length=(2, _DIMENSION))),
    tupleType=(3, _message("TupleType", types=(1, VALUE_TYPE, True))),
    dictionaryType=(
        4,
        _message("DictionaryType", keyType=(1, VALUE_TYPE), valueType=(2, VALUE_TYPE)),
    ),
    stateType=(5, _message("StateType", wrappedType=(1, VALUE_TYPE))),
)
_TENSOR_VALUE = _message(
    "TensorValue",
    floats=(1, _message("RepeatedFloats", values=(1, "float", True))),
    ints=(2, _message("RepeatedInts", values=(1, "int32", True))),
    bools=(3, _message("RepeatedBools", values=(1, "bool", True))),
    strings=(4, _message("RepeatedStrings", values=(1, "string", True))),
    longInts=(5, _message("RepeatedLongInts", values=(1, "int64", True))),
    doubles=(6, _message("RepeatedDoubles", values=(1, "double", True))),
    bytes=(7, _message("RepeatedBytes", values=(1, "bytes"))),
)
_VALUES = _message("Values", values=(1, _VALUE, True))
_define(
    _VALUE,
    type=(2, VALUE_TYPE),
    immediateValue=(
        3,
        _message(
            "ImmediateValue",
            tensor=(1, _TENSOR_VALUE),
            tuple=(2, _VALUES),
            list=(3, _VALUES),
            dictionary=(
                4,
                _message(
                    "DictionaryValue",
                    values=(
                        1,
                        _message("KeyValuePair", key=(1, _VALUE), value=(2, _VALUE)),
                        True,
                    ),
                ),
            ),
        ),
    ),
    blobFileValue=(5, _message("BlobFileValue", fileName=(1, "string"), offset=(2, "uint64"))),
)
_NAMED_TYPE = _message("NamedValueType", name=(1, "string"), type=(2, VALUE_TYPE))
_BINDING = _message("Binding", name=(1, "string"), value=(2, _VALUE))
_OPERATION = _message(
    "Operation",
    type=(1, "string"),
    inputs=(2, _map(_message("Argument", arguments=(1, _BINDING, True))), True),
    outputs=(3, _NAMED_TYPE, True),
    blocks=(4, _BLOCK, True),
    attributes=(5, _ATTRIBUTES, True),
)
_define(
    _BLOCK,
    inputs=(1, _NAMED_TYPE, True),
    outputs=(2, "string", True),
    operations=(3, _OPERATION, True),
)
_FUNCTION = _message(
    "Function",
    inputs=(1, _NAMED_TYPE, True),
    opset=(2, "string"),
    block_specializations=(3, _map(_BLOCK), True),
    attributes=(4, _ATTRIBUTES, True),
)
_define(
    MODEL,
    specificationVersion=(1, "int32"),
    description=(2, DESCRIPTION),
    mlProgram=(
        502,
        _message(
            "Program",
            version=(1, "int64"),
            functions=(2, _map(_FUNCTION), True),
            attributes=(4, _ATTRIBUTES, True),
        ),
    ),
)

MODEL_TYPES = {
    200: "pipelineClassifier",
    201: "pipelineRegressor",
    202: "pipeline",
    300: "glmRegressor",
    301: "supportVectorRegressor",
    302: "treeEnsembleRegressor",
    303: "neuralNetworkRegressor",
    304: "bayesianProbitRegressor",
    400: "glmClassifier",
    401: "supportVectorClassifier",
    402: "treeEnsembleClassifier",
    403: "neuralNetworkClassifier",
    404: "kNearestNeighborsClassifier",
    500: "neuralNetwork",
    501: "itemSimilarityRecommender",
    502: "mlProgram",
    555: "customModel",
    556: "linkedModel",
    560: "classConfidenceThresholding",
    600: "oneHotEncoder",
    601: "imputer",
    602: "featureVectorizer",
    603: "dictVectorizer",
    604: "scaler",
    606: "categoricalMapping",
    607: "normalizer",
    609: "arrayFeatureExtractor",
    610: "nonMaximumSuppression",
    900: "identity",
    2000: "textClassifier",
    2001: "wordTagger",
    2002: "visionFeaturePrint",
    2003: "soundAnalysisPreprocessing",
    2004: "gazetteer",
    2005: "wordEmbedding",
    2006: "audioFeaturePrint",
    3000: "serializedModel",
}
"""The kinds of models by their field, so that one that is refused is named."""

DTYPE_NAMES = {
    1: "bool",
    2: "string",
    10: "fp16",
    11: "fp32",
    12: "fp64",
    13: "bf16",
    21: "int8",
    22: "int16",
    23: "int32",
    24: "int64",
    25: "int4",
    31: "uint8",
    32: "uint16",
    33: "uint32",
    34: "uint64",
    35: "uint4",
    36: "uint2",
    37: "uint1",
    38: "uint6",
    39: "uint3",
    40: "fp8e4m3fn",
    41: "fp8e5m2",
}
"""MIL's types as its text names them, by the numbers of the enumeration DataType."""
