"""MLModel, MLModelAsset and MLState."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from softcoreml.api import conversion
from softcoreml.api.configuration import MLModelConfiguration, MLPredictionOptions
from softcoreml.api.descriptions import MLModelDescription
from softcoreml.api.devices import MLAllComputeDevices
from softcoreml.api.feature_values import MLArrayBatchProvider, provider
from softcoreml.api.foundation import NSURL, url_path
from softcoreml.api.multiarray import MLMultiArray
from softcoreml.api.objects import Object, caught, in_background
from softcoreml.errors import InputError, ModelError, UnreadableModel
from softcoreml.format.package import ModelFile, read_memory
from softcoreml.format.read import compile_model, read_model
from softcoreml.loaded import LoadedModel, States

Handler = Callable[[Any, Any], Any]


class MLState(Object):
    """The states of a model, from `-[MLModel newState]`."""

    def __init__(self, states: States) -> None:
        super().__init__()
        self.states = states

    # ML: -getMultiArrayForStateNamed:handler:
    def getMultiArrayForStateNamed_handler_(
        self, name: str, handler: Callable[[MLMultiArray], Any]
    ) -> None:
        """The handler's multi-array is the state's own memory, and may be written."""
        handler(MLMultiArray.over(self.states[name]))


class MLModelAsset(Object):
    """A model that is read but not loaded."""

    def __init__(self, file: ModelFile) -> None:
        super().__init__()
        self.file = file

    # ML: +modelAssetWithSpecificationData:error:
    @classmethod
    def modelAssetWithSpecificationData_error_(
        cls, data: bytes, error: None
    ) -> tuple[MLModelAsset | None, Any]:
        return cls.modelAssetWithSpecificationData_blobMapping_error_(data, {}, error)

    # ML: +modelAssetWithSpecificationData:blobMapping:error:
    @classmethod
    def modelAssetWithSpecificationData_blobMapping_error_(
        cls, data: bytes, blobs: Mapping[Any, bytes], error: None
    ) -> tuple[MLModelAsset | None, Any]:
        """`blobs` are weight files by URL, of which the path is relative to the model."""

        def make() -> MLModelAsset:
            here = Path.cwd()
            files = {_blob_name(url, here): blob for url, blob in blobs.items()}
            return cls(read_memory(data, files))

        return caught(error, make)

    # ML: +modelAssetWithURL:error:
    @classmethod
    def modelAssetWithURL_error_(cls, url: Any, error: None) -> tuple[MLModelAsset | None, Any]:
        return caught(error, lambda: cls(_compiled(url_path(url))))

    # ML: -functionNamesWithCompletionHandler:
    def functionNamesWithCompletionHandler_(self, handler: Handler) -> None:
        in_background(lambda: list(self.file.description.functions), handler)

    # ML: -modelDescriptionWithCompletionHandler:
    def modelDescriptionWithCompletionHandler_(self, handler: Handler) -> None:
        self.modelDescriptionOfFunctionNamed_completionHandler_(None, handler)

    # ML: -modelDescriptionOfFunctionNamed:completionHandler:
    def modelDescriptionOfFunctionNamed_completionHandler_(
        self, name: str | None, handler: Handler
    ) -> None:
        all_of_it = self.file.description
        in_background(lambda: MLModelDescription(all_of_it, all_of_it.function(name)), handler)


def _blob_name(url: Any, here: Path) -> str:
    """A URL made from a relative path is absolute: the part below the working folder counts."""
    path = Path(url) if isinstance(url, str) else url_path(url)
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _compiled(path: Path) -> ModelFile:
    if not path.is_dir() or (path / "Manifest.json").exists():
        if not path.exists():
            raise UnreadableModel(f"there is no model at {path}")
        raise ModelError(f"{path} is not compiled: give the result of compileModelAtURL_error_")
    return read_model(path)


class MLModel(Object):
    """A loaded model."""

    def __init__(self, file: ModelFile, configuration: MLModelConfiguration | None) -> None:
        super().__init__()
        self._configuration = configuration or MLModelConfiguration()
        self._loaded = LoadedModel(file, self._configuration.functionName())

    # ML: +compileModelAtURL:error:
    @classmethod
    def compileModelAtURL_error_(cls, url: Any, error: None) -> tuple[NSURL | None, Any]:
        """The compiled folder is temporary: it is removed when the process ends."""
        return caught(error, lambda: _compile(url_path(url)))

    # ML: +compileModelAtURL:completionHandler:
    @classmethod
    def compileModelAtURL_completionHandler_(cls, url: Any, handler: Handler) -> None:
        in_background(lambda: _compile(url_path(url)), handler)

    # ML: +modelWithContentsOfURL:error:
    @classmethod
    def modelWithContentsOfURL_error_(cls, url: Any, error: None) -> tuple[MLModel | None, Any]:
        return cls.modelWithContentsOfURL_configuration_error_(url, None, error)

    # ML: +modelWithContentsOfURL:configuration:error:
    @classmethod
    def modelWithContentsOfURL_configuration_error_(
        cls, url: Any, configuration: MLModelConfiguration | None, error: None
    ) -> tuple[MLModel | None, Any]:
        return caught(error, lambda: cls(_compiled(url_path(url)), configuration))

    # ML: +loadContentsOfURL:configuration:completionHandler:
    @classmethod
    def loadContentsOfURL_configuration_completionHandler_(
        cls, url: Any, configuration: MLModelConfiguration | None, handler: Handler
    ) -> None:
        in_background(lambda: cls(_compiled(url_path(url)), configuration), handler)

    # ML: +loadModelAsset:configuration:completionHandler:
    @classmethod
    def loadModelAsset_configuration_completionHandler_(
        cls, asset: MLModelAsset, configuration: MLModelConfiguration | None, handler: Handler
    ) -> None:
        in_background(lambda: cls(asset.file, configuration), handler)

    # ML: +availableComputeDevices
    @classmethod
    def availableComputeDevices(cls) -> list[Object]:
        return MLAllComputeDevices()

    # ML: -modelDescription
    def modelDescription(self) -> MLModelDescription:
        return MLModelDescription(self._loaded.file.description, self._loaded.description)

    # ML: -configuration
    def configuration(self) -> MLModelConfiguration:
        return self._configuration

    # ML: -newState
    def newState(self) -> MLState:
        return MLState(self._loaded.new_states())

    # ML: -predictionFromFeatures:error:
    def predictionFromFeatures_error_(self, features: Any, error: None) -> tuple[Any, Any]:
        return caught(error, lambda: self._predict(features))

    # ML: -predictionFromFeatures:options:error:
    def predictionFromFeatures_options_error_(
        self, features: Any, options: MLPredictionOptions, error: None
    ) -> tuple[Any, Any]:
        return caught(error, lambda: self._predict(features, options=options))

    # ML: -predictionFromFeatures:completionHandler:
    def predictionFromFeatures_completionHandler_(self, features: Any, handler: Handler) -> None:
        in_background(lambda: self._predict(features), handler)

    # ML: -predictionFromFeatures:options:completionHandler:
    def predictionFromFeatures_options_completionHandler_(
        self, features: Any, options: MLPredictionOptions, handler: Handler
    ) -> None:
        in_background(lambda: self._predict(features, options=options), handler)

    # ML: -predictionFromFeatures:usingState:error:
    def predictionFromFeatures_usingState_error_(
        self, features: Any, state: MLState, error: None
    ) -> tuple[Any, Any]:
        return caught(error, lambda: self._predict(features, state))

    # ML: -predictionFromFeatures:usingState:options:error:
    def predictionFromFeatures_usingState_options_error_(
        self, features: Any, state: MLState, options: MLPredictionOptions, error: None
    ) -> tuple[Any, Any]:
        return caught(error, lambda: self._predict(features, state, options))

    # ML: -predictionFromFeatures:usingState:options:completionHandler:
    def predictionFromFeatures_usingState_options_completionHandler_(
        self, features: Any, state: MLState, options: MLPredictionOptions, handler: Handler
    ) -> None:
        in_background(lambda: self._predict(features, state, options), handler)

    # ML: -predictionsFromBatch:error:
    def predictionsFromBatch_error_(self, batch: Any, error: None) -> tuple[Any, Any]:
        return caught(error, lambda: self._batch(batch, None))

    # ML: -predictionsFromBatch:options:error:
    def predictionsFromBatch_options_error_(
        self, batch: Any, options: MLPredictionOptions, error: None
    ) -> tuple[Any, Any]:
        return caught(error, lambda: self._batch(batch, options))

    def _batch(self, batch: Any, options: MLPredictionOptions | None) -> MLArrayBatchProvider:
        if options is not None and options.outputBackings():
            raise InputError("output backings are for single predictions, not for a batch")
        results = [self._predict(batch.featuresAtIndex_(row)) for row in range(batch.count())]
        return MLArrayBatchProvider.alloc().initWithFeatureProviderArray_(results)

    def _predict(
        self,
        features: Any,
        state: MLState | None = None,
        options: MLPredictionOptions | None = None,
    ) -> Any:
        description = self._loaded.description
        given = conversion.arrays(features, description)
        results = self._loaded.predict(given, None if state is None else state.states)
        backings = {} if options is None else options.outputBackings()
        return provider(conversion.values(results, description, backings))


def _compile(path: Path) -> NSURL:
    parent = Path(tempfile.mkdtemp(prefix="softcoreml-"))
    folder = parent / f"{path.stem}.mlmodelc"
    try:
        compile_model(path, folder)
    except BaseException:
        shutil.rmtree(parent, ignore_errors=True)
        raise
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return NSURL.fileURLWithPath_(str(folder))
