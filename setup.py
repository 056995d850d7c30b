"""What pyproject.toml cannot say: the sweep files in experiments/ go into the package, so that `fedchoir reproduce`
finds them where there is no checkout."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExperiments(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # an editable install finds them in the checkout
            return
        for source in sorted(Path("experiments").rglob("*.toml")):
            target = Path(self.build_lib, "fedchoir", "experiments", "tables", *source.parts[1:])
            self.mkpath(str(target.parent))
            self.copy_file(str(source), str(target))


setup(cmdclass={"build_py": BuildWithExperiments})
