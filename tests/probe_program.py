"""The everyday steps of an agent's programs; a plain clone and a sandbox must show them the same results.

`PROGRAM` runs with the system's own Python in the top directory of a repository of `FILES` and prints a transcript
as JSON: exit code and output of each step, and the directory's content at the end. Commits have fixed names and
dates, so that their ids are compared too.
"""

from __future__ import annotations

import json

FILES = {
    ".gitignore": "*.o\n__pycache__/\nbuild/\n",
    "README.md": "probe\n\nline two\nline three\n",
    "Makefile": "all: build/hello\nbuild/hello: src/hello.c\n\tmkdir -p build && cc -O1 -o $@ $<\n"
    "test:\n\tpython3 -m unittest -q tests.test_sum\n",
    "src/hello.c": '#include <stdio.h>\nint main(void) { puts("hello from C"); return 3; }\n',
    "src/sums.py": "def add(a, b):\n    return a + b\n",
    "src/__init__.py": "",
    "tests/__init__.py": "",
    "tests/test_sum.py": "import unittest\nfrom src.sums import add\nclass T(unittest.TestCase):\n"
    "    def test(self):\n        self.assertEqual(add(1, 2), 3)\n",
    "docs/a.txt": "alpha\n",
    "docs/b.txt": "beta\n",
    "docs/deep/c.txt": "gamma\n",
    "still/one.txt": "one\n",
    "still/two.txt": "two\n",
    "still/three.txt": "three\n",
    "tool.sh": "#!/bin/sh\necho tool $1\n",
}
_STEPS = r"""
### status
git status --porcelain=v2 --untracked-files=all
### log
git log --format='%H %an <%ae> %ad %s' --date=raw
### head
git rev-parse HEAD HEAD^ HEAD^{tree}; git symbolic-ref HEAD
### files
git ls-files -s; git ls-tree -r HEAD
### show
git show --stat HEAD; git blame -s README.md; git grep -n line
### describe
git describe --always; git rev-list --count HEAD; git cat-file -p HEAD
### top
git rev-parse --show-toplevel --git-dir --is-inside-work-tree
### branches
git branch --format='%(refname) %(objectname)'
### upstream
git remote; git status -sb
### fsck
git fsck --no-progress 2>/dev/null
### edit
echo more >> README.md; sed -i s/alpha/ALPHA/ docs/a.txt; git status -s; git diff
### add
echo new > new.txt; git add -A; git status -s; git diff --cached --stat
### commit
git commit -q -m 'one change'; git log -1 --format=%H; git status -s
### amend
echo again >> new.txt; git commit -q -a --amend -m 'one change, amended'; git log -2 --format='%H %s'
### stash
echo stashed >> README.md; git stash push -q; git diff --quiet; echo $?; git stash list --format=%gs
git stash pop -q; git diff --stat; git checkout -q -- README.md
### branch
git branch other; git checkout -q other; echo o > other.txt; git add other.txt; git commit -q -m other
git checkout -q -; ls other.txt; git merge -q --no-ff -m merged other; git log --graph --format=%H
### conflict
git checkout -q -b left HEAD~; echo l > docs/a.txt; git commit -qam l; git checkout -q -b right HEAD~
echo r > docs/a.txt; git commit -qam r; git merge left; git status -s; cat docs/a.txt; git merge --abort
git status -s
### rebase
git checkout -q other; git rebase -q left; git log -3 --format='%H %s'; git cherry-pick right
git cherry-pick --abort; git status -s
### tag
git tag -a v1 -m first; git tag -l; git rev-parse v1; git describe
### reset
git reset -q --hard HEAD~; git reflog --format='%gs' | head -3; git revert --no-edit HEAD
git log -1 --format=%H
### worktree
git worktree add -q --detach "$TMPDIR/tree" HEAD && ls "$TMPDIR/tree"
git worktree list | wc -l; git worktree remove "$TMPDIR/tree"; git worktree list | wc -l
### patch
git format-patch -1 --stdout > $TMPDIR/p; git apply -R --check $TMPDIR/p && git apply -R $TMPDIR/p
git status -s; git checkout -q -- .; git clean -fdq
### hooks
printf '#!/bin/sh\necho hook ran\nexit 1\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
git commit -q --allow-empty -m x; echo $?; rm .git/hooks/pre-commit
### clone
git clone -q . $TMPDIR/clone && git -C $TMPDIR/clone log -1 --format=%s; rm -rf $TMPDIR/clone
### repack
git repack -adq && git gc -q && git status -s && git count-objects | cut -d, -f1 | wc -l
### cc
cc -O1 -o $TMPDIR/hello src/hello.c && $TMPDIR/hello; echo $?; cc -c nothing.c; echo $?
### make
make -s && build/hello; echo $?; make -s -q; echo $?; touch src/hello.c; make -q; echo $?
### unittest
make -s test 2>&1 | sed 's/in [0-9.]*s/in Xs/'; echo $?
### red
echo 'def add(a, b): return 0' > src/sums.py; make -s test 2>&1 | grep -c Error; git checkout -q src/sums.py
### bytecode
python3 -B -c 'import src.sums as s; print(s.add(2, 3), s.__file__)'; python3 -m py_compile src/sums.py
ls src/__pycache__ | wc -l; git status -s; rm -r src/__pycache__
### shebang
./tool.sh x; echo $?; chmod +x tool.sh && ./tool.sh x; chmod -x tool.sh; git status -s
### pipes
seq 100000 | sort -rn | head -3; yes | head -c 300000 | wc -c; false | true; echo $?
### streams
echo out; echo err >&2; exit 7
### signals
sh -c 'kill -TERM $$'; echo $?; sleep 5 & kill %1 2>/dev/null || kill $!; wait $!; echo $?
### descriptors
exec 7<README.md; read line <&7; echo $line; ulimit -c
### temporary
f=$(mktemp) && echo t > $f && cat $f && rm $f; d=$(mktemp -d) && mv $d $d.2 && rmdir $d.2; echo $?
### append
echo appended >> docs/b.txt; cat docs/b.txt; stat -c '%s %h %a %F' docs/b.txt
### rename
mv docs/b.txt src/moved.txt && cat src/moved.txt && mv src/moved.txt docs/b.txt; git status -s
### rename directory
mv docs moved && ls -R moved && mv moved docs; git status -s
### rename(2) of a directory
python3 -I -c 'import os; os.rename("still", "elsewhere")' 2>&1 | tail -1
test -d elsewhere && mv elsewhere still; ls still
### exchange
python3 -I - <<'END'

import ctypes
libc = ctypes.CDLL(None, use_errno=True)
open("left", "w").write("l"); open("right", "w").write("r")
print(libc.renameat2(-100, b"left", -100, b"right", 2), open("left").read(), open("right").read())
print(libc.renameat2(-100, b"left", -100, b"right", 1) and ctypes.get_errno())
END
rm left right
### replace directory
rm -r docs/deep; echo file > docs/deep; cat docs/deep; rm docs/deep; mkdir docs/deep
echo other > docs/deep/d.txt; ls docs/deep; git status -s; git checkout -q -- docs; git clean -fdq docs
### chmod
chmod 640 README.md; stat -c %a README.md; chmod u-w README.md; echo x >> README.md; echo $?
chmod 644 README.md; git status -s; chmod 000 docs/a.txt; cat docs/a.txt; chmod 644 docs/a.txt; umask
### symlink
ln -s docs/a.txt link && cat link && readlink link && ln -sfn docs link && ls link/ && rm link
### hard links
ln README.md hard && echo linked >> hard && tail -1 README.md; stat -c %h README.md hard
test README.md -ef hard; echo $?; rm hard; stat -c %h README.md
### delete
rm README.md docs/b.txt; ls docs; git status -s; git checkout -q -- .; cat README.md | wc -l
### big
dd if=/dev/zero of=big bs=1M count=40 2>/dev/null; sha256sum big; stat -c %s big; truncate -s 3M big
sha256sum big; rm big
### sparse
truncate -s 200M sparse; stat -c %s sparse; echo end >> sparse; tail -c 4 sparse; rm sparse
### unicode
printf 'é' > 'naïve ü 漢字.txt'; ls | grep na; git status -s; git -c core.quotePath=false status -s
cat na*; rm na*
### names
touch -- '-dash' 'a b' 'quote"s' "it's" '*'; ls; rm -- -dash 'a b' 'quote"s' "it's" '*'
### long names
n=$(printf 'x%.0s' $(seq 255)); touch $n && echo made; touch ${n}y; echo $?; rm $n
### times
touch -d '2020-02-03 04:05:06.789 UTC' docs/a.txt; stat -c '%y %Y' docs/a.txt; cp -p docs/a.txt c
stat -c %Y c; test docs/a.txt -nt README.md; echo $?; rm c; git status -s
### flock
python3 -I - <<'END'

import fcntl, os
held = open("docs/a.txt", "r+")
fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
try:
    fcntl.flock(open("docs/a.txt"), fcntl.LOCK_SH | fcntl.LOCK_NB)
except BlockingIOError:
    print("locked")
fcntl.lockf(held, fcntl.LOCK_EX)
print(os.fstat(held.fileno()).st_size)
END
### mapped
python3 -I - <<'END'

import mmap
with open("src/sums.py", "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
    page[:3] = b"DEF"
    page.flush()
print(open("src/sums.py").readline())
with open("src/sums.py", "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
    page[:3] = b"def"
END
### read while it is appended to
python3 -I - <<'END'
early = open("still/two.txt")
with open("still/two.txt", "a") as file:
    file.write("added while it was open\n")
print(repr(early.read()))
END
git checkout -q still/two.txt
### mapped before it is changed
python3 -I - <<'END'
import mmap
with open("still/three.txt", "rb") as early:
    page = mmap.mmap(early.fileno(), 0, prot=mmap.PROT_READ)
with open("still/three.txt", "r+b") as file:
    file.write(b"THREE")
print(page[:5], open("still/three.txt").read())
END
git checkout -q still/three.txt
### nameless
python3 -I - <<'END'

import ctypes, os
fd = os.open("docs", os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(fd, b"nameless")
libc = ctypes.CDLL(None, use_errno=True)
print(libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"named", 0x400))
print(open("named").read(), oct(os.stat("named").st_mode))
os.posix_fallocate(fd, 0, 100)
print(os.stat("named").st_size)
END
rm -f named
### fifo
mkfifo $TMPDIR/pipe && (echo through > $TMPDIR/pipe &) && cat $TMPDIR/pipe; rm $TMPDIR/pipe
### archive
tar -cf $TMPDIR/t.tar docs src/sums.py && mkdir out && tar -xf $TMPDIR/t.tar -C out && find out | sort
diff -r docs out/docs; cp -a out copy; diff -r out copy; rm -r out copy $TMPDIR/t.tar
### find
find . -path ./.git -prune -o -newer tool.sh -type d -print | wc -l >/dev/null; find docs -type f | sort
### many
mkdir many; for i in $(seq 300); do echo $i > many/$i; done; ls many | wc -l; git status -s; rm -r many
### pwd
pwd; cd docs/deep && pwd && cd ../.. && ls -d .git
### devices
echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; test -w /dev/shm; echo $?
### in the end
mkdir -p kept/below; echo kept > kept/below/file; ln -s file kept/below/link; chmod +x tool.sh
rm docs/b.txt; echo last >> README.md; git add -A; git write-tree; git reset -q; git status -s
"""
STEPS = dict(part.split("\n", 1) for part in _STEPS.strip().removeprefix("### ").split("\n### "))
OVERLAY = "an overlay"
DIFFERENCES: dict[str, tuple[str, str]] = {
    # step: place of the difference ("" everywhere), reason
    "upstream": ("", "the agent's repository has no remote: what it commits goes nowhere"),
    "rename(2) of a directory": (
        OVERLAY,
        "a directory of the base cannot be renamed in one step (EXDEV); mv and others copy it then",
    ),
    "mapped before it is changed": (
        OVERLAY,
        "who mapped a file of the base before its first change goes on seeing the base in that mapping",
    ),
}
"""Every step that may differ, and must: a listed step that turns out equal fails the test."""

PROGRAM = (
    f"""
import hashlib, json, os, stat, subprocess, sys
STEPS = json.loads({json.dumps(json.dumps(STEPS))})
"""
    + r"""
here, temporary = os.getcwd(), os.environ["TMPDIR"]
environment = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "TMPDIR": temporary, "LANG": "C.UTF-8",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_PAGER": "cat", "GIT_EDITOR": "true",
    "PYTHONDONTWRITEBYTECODE": "1"}
for role in ("AUTHOR", "COMMITTER"):
    environment |= {f"GIT_{role}_NAME": "Ada", f"GIT_{role}_EMAIL": "ada@example.org",
        f"GIT_{role}_DATE": "1700000000 +0000"}
os.umask(0o022)
def plain(data):
    text = data.decode(errors="surrogateescape").replace(here, "HERE")
    return text if temporary == "/" else text.replace(temporary, "TMP")
def entry(path):
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return ["link", os.readlink(path)]
    if stat.S_ISDIR(info.st_mode):
        return ["directory", oct(info.st_mode)]
    return [oct(info.st_mode), hashlib.sha256(open(path, "rb").read()).hexdigest()]
told = {}
for name, line in STEPS.items():
    done = subprocess.run(["/bin/sh", "-c", line], env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    told[name] = [done.returncode, plain(done.stdout), plain(done.stderr)]
tree = {}
for root, names, files in os.walk("."):
    names[:] = sorted(name for name in names if name != ".git")
    for name in (*names, *files):
        tree[os.path.join(root, name)] = entry(os.path.join(root, name))
json.dump({"steps": told, "tree": tree}, sys.stdout)
"""
)
