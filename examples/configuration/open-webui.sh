# Open WebUI: . examples/configuration/open-webui.sh && open-webui serve --port 3000
export OPENAI_API_BASE_URL=http://127.0.0.1:8080/v1
export OPENAI_API_KEY=none ENABLE_OLLAMA_API=false
