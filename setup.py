"""Maps the top-level folders below the import root ``decodehub``; all other metadata is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

FOLDERS = ("hub_datasets", "hub_models", "loaders", "metrics", "scripts")

setup(
    packages=[
        "decodehub",
        *(f"decodehub.{name}" for name in find_namespace_packages("decodehub", exclude=["__pycache__*", "*.__pycache__*"])),
        *(f"decodehub.{folder}" for folder in FOLDERS),
        *(
            f"decodehub.{folder}.{name}"
            for folder in FOLDERS
            for name in find_namespace_packages(folder, exclude=["__pycache__*", "*.__pycache__*"])
        ),
    ],
    package_dir={"decodehub": "decodehub", **{f"decodehub.{folder}": folder for folder in FOLDERS}},
    package_data={"": ["*.md", "*.csv", "*.json", "*.yaml", "*.html", "*.css", "*.js", "py.typed"]},
    include_package_data=False,
)
