# Install localchat from this folder: powershell -ExecutionPolicy Bypass -File install.ps1 [TARGET]
$python = if ($env:PYTHON) { $env:PYTHON } else { "python" }
& $python (Join-Path $PSScriptRoot "install.py") @args
exit $LASTEXITCODE
