# Homebrew's formula of Baton. `./x dist --downloads URL` fills in version, addresses and digests.
class Baton < Formula
  desc "Language models on your devices, with the help of a cloud"
  version "@VERSION@"
  license "Apache-2.0"
@SOURCES@
  def install
    bin.install "bin/baton"
    man1.install Dir["share/man/man1/*.1"]
    bash_completion.install "share/bash-completion/completions/baton"
    zsh_completion.install "share/zsh/site-functions/_baton"
    fish_completion.install "share/fish/vendor_completions.d/baton.fish"
  end

  service do
    run [opt_bin/"baton", "serve"]
    keep_alive crashed: true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/baton --version")
  end
end
