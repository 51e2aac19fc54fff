# Kubernetes as a Go module. To be sourced.

kubernetes=1.37.2

# Writes the go.mod of a module that is called $1 into the folder at hand. Kubernetes requires its
# own parts as v0.0.0, from folders beside it; published they have its number with another first part.
kubernetes_module() {
    printf 'module %s\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v%s\n' "$1" "$kubernetes" >go.mod
    GOFLAGS=-mod=mod go mod download -json "k8s.io/kubernetes@v$kubernetes" >module.json
    sed -n "s|^[[:space:]]*\(k8s.io/[a-z-]*\) => ./staging.*|replace \1 => \1 v0.${kubernetes#*.}|p" \
        "$(sed -n 's/.*"GoMod": "\(.*\)".*/\1/p' module.json)" >>go.mod
}
